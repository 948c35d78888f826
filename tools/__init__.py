"""Tools of the project's developers; nothing in `labkit` or the notebooks imports them."""
