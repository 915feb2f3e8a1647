"""Many tenants fine-tune one base model by reinforcement learning, each with an adapter of its own.

A step of such training generates answers, waits for tools, and updates the adapter: one tenant alone leaves its
machines idle most of the time.  Rules say who may generate and train when, and how old an answer may be
(:mod:`~wavetank.training.tenants.interface`).  The same rules are simulated
(:mod:`~wavetank.training.tenants.simulate`, study ``rl-tenants``) and served:
:class:`~wavetank.training.tenants.service.TenantService` trains small policies for real (study ``tenant-learning``).
"""

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.training.tenants.confined import Confined as Confined
    from wavetank.training.tenants.marlaas import Marlaas as Marlaas
    from wavetank.training.tenants.policy import Adapter as Adapter
    from wavetank.training.tenants.service import Quota as Quota
    from wavetank.training.tenants.service import TenantFailedError as TenantFailedError
    from wavetank.training.tenants.service import TenantService as TenantService
    from wavetank.training.tenants.service import TenantTask as TenantTask
    from wavetank.training.tenants.toys import Arithmetic as Arithmetic
    from wavetank.training.tenants.toys import Bandit as Bandit
    from wavetank.training.tenants.toys import Grid as Grid

__getattr__, __dir__, __all__ = lazy_names(__name__)
