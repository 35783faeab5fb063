"""The values that flow through the library, and the protocol that detectors follow."""
