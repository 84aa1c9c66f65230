"""Studies: networks, tasks and data that rules and attacks are compared on."""

from varangian.studies.study import Study
from varangian.studies.target_localization import target_localization

__all__ = ["Study", "target_localization"]
