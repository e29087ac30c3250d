"""Policies and token samplers."""
