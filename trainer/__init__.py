"""Rollouts, policies, credit, learning, and the loop that ties them."""
