"""Parts that the environments of classic control share."""
