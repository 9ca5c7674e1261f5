"""Diagnosis: what the data alone says of its step, size, memory and circulation, and which estimator suits it."""

from phibe.diagnosis.verdict import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
