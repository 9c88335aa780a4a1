"""What the rows of a group say together: fits, and rates beside a reference."""
