"""Every policy on every recorded window: cost and attainment, against targets set beforehand."""
