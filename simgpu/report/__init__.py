"""What a program did to a GPU's memory, told on one page: what lived at the peak, whose it was, who asked for it."""
