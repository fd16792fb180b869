"""What is made of records: tables, figures, pages, papers, and other tools' formats."""
