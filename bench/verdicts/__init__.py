"""What is said of records and machines: compared, gated, claimed, reproduced, examined."""
