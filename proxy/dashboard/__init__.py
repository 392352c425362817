"""The dashboard of a running gateway (``fetchgate top``): pure views of a snapshot, and the loop around them.

- **snapshot** (sans-IO): the JSON of ``/state`` as dataclasses; missing fields count as empty.
- **figures** (sans-IO): short formats of numbers.
- **choice** (sans-IO): the user's selection, and how keys change it.
- **view** (sans-IO): draws a snapshot, for a selection and a screen size.
- **top**: polls ``/state``, reads keys, draws.
"""
