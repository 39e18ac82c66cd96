"""What holds for every world of this suite."""

from tests.groups.fakes import patient_loads

__all__ = ["patient_loads"]
