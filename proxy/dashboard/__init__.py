"""The dashboard of a running gateway, or of several (``fetchgate top``).

- **snapshot** (sans-IO): the JSON of ``/state`` as dataclasses.
- **figures** (sans-IO): short formats of numbers.
- **choice** (sans-IO): what the user has selected, and how keys change it.
- **view** (sans-IO): draws a snapshot, for a selection and a screen size.
- **pods** (sans-IO): where the gateways in the Pods of Kubernetes can be asked.
- **reports**, **fleet**, **fleet_view** (sans-IO): what each of several gateways reports, as rows of a table.
- **gateways**: the gateways that ``--admin`` names.
- **asking**: asks a gateway for its state, over HTTP.
- **terminal**: reads keys, and runs a screen until the user quits.
- **top**, **fleet_top**: the screens of one gateway and of several. They poll and draw.
"""
