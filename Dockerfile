# Starling with all its extras, for `make train`, `make test`, and the command `starling`:
#
#   docker build -t starling .                                # CPU
#   docker build -t starling-gpu --build-arg VARIANT=gpu .    # NVIDIA GPU; the host needs the NVIDIA Container Toolkit
#   docker run --rm -it --shm-size 2g starling make test
#   docker run --rm -it --gpus all --shm-size 2g -v runs:/starling/runs starling-gpu starling train ppo-cartpole
#
# Without more, pip installs the default build of torch, which includes CUDA and runs on a CPU too. The CPU image becomes
# much smaller with --build-arg PIP_EXTRA_INDEX_URL=..., the index of PyTorch's CPU wheels.
ARG VARIANT=cpu

FROM python:3.11-slim-bookworm AS base
# A compiler for compile=true, libraries with which MuJoCo renders without a screen, and what the tests call. Debian removes
# old versions of its packages, so none are pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git libegl1 libgl1 libosmesa6 make procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 starling \
    && install -d -o starling -g starling /starling /starling/runs
USER 1000:1000

FROM base AS cpu

FROM base AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics

# hadolint ignore=DL3006
FROM ${VARIANT}
WORKDIR /starling
ARG PIP_EXTRA_INDEX_URL=
# First what decides which packages are installed: changes of other files do not install them again.
COPY --chown=starling:starling Makefile pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=starling:starling src/starling/__init__.py src/starling/
RUN make install && rm -rf /home/starling/.cache
COPY --chown=starling:starling . .
ENV PATH=/starling/.venv/bin:$PATH
CMD ["make", "train"]
