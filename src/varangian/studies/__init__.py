"""Studies: networks, tasks and data that rules and attacks are compared on."""

from varangian.studies.digits import digits
from varangian.studies.human_activity import human_activity
from varangian.studies.school import school
from varangian.studies.study import Study
from varangian.studies.target_localization import target_localization

__all__ = ["Study", "digits", "human_activity", "school", "target_localization"]
