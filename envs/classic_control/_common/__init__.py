"""What environments of classic control share."""
