"""Certificates and trained policies."""
