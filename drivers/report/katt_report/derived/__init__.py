"""Values that follow from the rows of a group together: fits, and rates beside a reference."""
