"""The dashboard of a running gateway (``fetchgate top``): a pure view of a snapshot, and the loop around it.

- **snapshot** (sans-IO): the JSON of ``/state`` as dataclasses; missing fields count as empty.
- **figures** (sans-IO): short formats of numbers.
- **choice** (sans-IO): what the user has selected, and how keys change it.
- **view** (sans-IO): snapshot, selection and size in; what rich prints out.
- **top**: polls ``/state``, reads keys, draws.
"""
