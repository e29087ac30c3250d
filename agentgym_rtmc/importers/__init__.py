"""Readers of episodes that other programs recorded."""
