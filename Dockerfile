# `batchlab serve` on a CPU, from Debian's Python, with the compiled core; below 300 MB. It has everything but
# `calibrate fit`, which alone needs SciPy (110 MB).
#
#     docker build --tag batchlab .
#     docker run --publish 8000:8000 batchlab quickstart --time-scale 2
#     docker run --publish 8000:8000 --volume "$PWD:/scenarios:ro" batchlab /scenarios/mine.yaml

FROM debian:13-slim AS build
# Unpinned: Debian 13 keeps its versions, and its archive keeps only the last of each.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /batchlab && mkdir -p /srv/runs
WORKDIR /source
COPY . .
RUN BATCHLAB_COMPILE=1 /batchlab/bin/python -m pip install --no-cache-dir -c constraints.txt '.[serve]'
# What no run needs: SciPy, installers, the packages' own tests, and the names of symbols.
RUN /batchlab/bin/python -m pip uninstall --yes scipy setuptools pip \
    && find /batchlab/lib -type d -name tests -prune -exec rm -rf '{}' + \
    && find /batchlab/lib -name '*.so*' -exec strip --strip-unneeded '{}' +

# No shell, no package manager; the user `nonroot` has the number 65532.
FROM gcr.io/distroless/python3-debian13:nonroot
COPY --from=build /batchlab /batchlab
COPY --from=build --chown=65532:65532 /srv /srv
WORKDIR /srv
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["/batchlab/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["/batchlab/bin/batchlab", "serve", "--host", "0.0.0.0", "--overwrite"]
CMD ["quickstart"]
