"""What commands print, write and compute, held byte for byte against the commit before the redesign."""
