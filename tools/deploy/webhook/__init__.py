"""The admission webhook that adds the gateway to pods of Kubernetes (the injector).

- `injection` decides what becomes of a pod. It gets an AdmissionReview and returns one, and does no input or
  output.
- `refusals` tells which refusals are new, so that the log does not have a line for each retry.
- `__main__` is the server. It needs starlette and uvicorn.

The image calls this package `webhook`. The gateway's own packages are beside it: options in annotations are
checked by the gateway's declarations.
"""
