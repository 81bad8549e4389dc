"""Tests of ejpy.admin."""
