"""The dashboard of a running gateway (``fetchgate top``).

- **snapshot** (sans-IO): the JSON of ``/state`` as dataclasses.
- **figures** (sans-IO): short formats of numbers.
- **choice** (sans-IO): what the user has selected, and how keys change it.
- **view** (sans-IO): draws a snapshot, for a selection and a screen size.
- **top**: polls ``/state``, reads keys, draws the view.
"""
