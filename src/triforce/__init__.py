"""TriForce."""
