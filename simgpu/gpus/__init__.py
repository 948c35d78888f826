"""The data of each GPU."""
