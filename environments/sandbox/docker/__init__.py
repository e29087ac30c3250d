"""Sandboxes in containers: any engine that speaks Docker's API, chosen by DOCKER_HOST (podman's service too)."""
