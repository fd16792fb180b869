"""Tables and charts of the cases, made of the tables and charts that `bench.show` offers."""
