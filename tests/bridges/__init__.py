"""Tests of the bridges to other packages."""
