"""Tables and charts of records as plain data, and renderers of tables.

Nothing is measured or judged here.
"""
