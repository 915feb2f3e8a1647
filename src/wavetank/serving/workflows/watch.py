"""What the sessions of all schedulers keep: the times of the applications that they have seen."""

from __future__ import annotations

from wavetank.serving.workflows.caches import Caches
from wavetank.serving.workflows.costs import Times
from wavetank.serving.workflows.interface import Platform, View


class Watch:
    """What sessions keep of the applications that they have seen: times, and the caches of a view.

    Parameters
    ----------
    platform : Platform
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.times: list[Times] = []

    def see(self, view: View) -> list[Caches]:
        """Take in new applications and return the caches of all devices."""
        for application in view.applications[len(self.times) :]:
            self.times.append(Times(application=application, platform=self.platform))
        found = []
        for device, shown in zip(self.platform.devices, view.devices, strict=True):
            caches = Caches(device, self.platform.model_bytes, self.platform.token_bytes)
            caches.fill(shown.models, shown.prefixes)
            found.append(caches)
        return found
