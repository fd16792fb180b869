"""Tables and charts of each case, built from those in `bench.show`."""
