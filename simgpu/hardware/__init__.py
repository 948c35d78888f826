"""What is known of each GPU."""
