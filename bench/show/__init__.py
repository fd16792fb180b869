"""Tables and charts of records, as plain data, and what renders tables; nothing is measured or judged here."""
