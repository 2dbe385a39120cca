# One image for every pod of a cluster with NVIDIA GPUs. From the top of the repository:
#   docker buildx build --file k8s/images/gpu.Dockerfile --tag tideserve:0.1.0 .
# The GPU proof, `helm test` with tests.gpuProof, takes a second image: --target proof --tag tideserve:0.1.0-proof
# docs/kubernetes-images.md says what it needs and what it holds.
# A tag moves. Give a release the digest too: --build-arg BASE_IMAGE=docker.io/library/debian:bookworm-slim@sha256:…
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${BASE_IMAGE} AS dependencies
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements requirements
# pip reads both itself: a further index, or a folder of wheels below requirements/.
ARG PIP_EXTRA_INDEX_URL=""
ARG PIP_FIND_LINKS=""
# Byte code that does not look at its source: the root file system is read-only, and layers lose times.
# Some packages come with files for other versions of Python, which do not compile and are never imported.
RUN python3 -m venv /opt/pip \
    && /opt/pip/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement requirements/pip.txt \
    && python3 -m venv --without-pip /opt/tideserve \
    && /opt/pip/bin/pip --python /opt/tideserve/bin/python install \
        --no-cache-dir --no-deps --no-compile --require-hashes --requirement requirements/gpu.txt \
    && { /opt/tideserve/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
        /opt/tideserve/lib >/dev/null 2>&1 || true; }
# CUDA comes with the wheels, the driver from the node. What compiles kernels at run time looks for a CUDA
# toolkit's folders and names, which the wheels leave out.
RUN requirements/link-cuda.sh /opt/tideserve

# FlashInfer's sampler, which every engine needs, for every kind of GPU: no pod compiles it then. Its release has no
# package of compiled kernels on the index. On two cores this stage takes over half an hour.
FROM dependencies AS kernels
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-dev \
    && rm -rf /var/lib/apt/lists/*
ARG CUDA_ARCHITECTURES="7.5 8.0 9.0a 10.0f 12.0f"
COPY k8s/images/compile_kernels.py .
RUN PATH=/opt/tideserve/bin:$PATH \
    CUDA_HOME=/opt/tideserve/lib/python3.11/site-packages/nvidia/cu13 \
    FLASHINFER_CUDA_ARCH_LIST="$CUDA_ARCHITECTURES" \
    python compile_kernels.py /opt/kernels/lib/python3.11/site-packages/flashinfer/data/aot

FROM dependencies AS application
COPY pyproject.toml README.md LICENSE ./
COPY serve_app serve_app
RUN /opt/pip/bin/pip --python /opt/tideserve/bin/python install \
        --no-cache-dir --no-deps --no-compile --no-build-isolation --prefix /opt/application . \
    && /opt/tideserve/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/application/lib
COPY config /opt/application/config

FROM ${BASE_IMAGE} AS serving
# bash and wget are what KubeRay's probes run. triton builds its launchers with the compiler and Python's headers
# when a kernel is first used, torch.compile and FlashInfer compile with it too: an engine does not start without.
ARG COMPILER="g++ python3-dev"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        bash ca-certificates libnuma1 python3 wget ${COMPILER} \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 tideserve \
    && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash tideserve \
    && echo 'PATH=/opt/tideserve/bin:$PATH' >/etc/profile.d/tideserve.sh \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
# Two layers: a release with the same lock file brings only the second, which is small.
COPY --from=dependencies /opt/tideserve /opt/tideserve
COPY --from=kernels /opt/kernels /opt/tideserve
COPY --from=application /opt/application /opt/tideserve

ENV PATH=/opt/tideserve/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/tideserve \
    CUDA_HOME=/opt/tideserve/lib/python3.11/site-packages/nvidia/cu13 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /opt/tideserve
USER 1000:1000
EXPOSE 8000
# Without Kubernetes: one A100. KubeRay sets a command of its own. NVIDIA_VISIBLE_DEVICES is not set on purpose:
# it would hand every GPU of a node to pods that asked for none.
# The interfaces are the container's: `--publish` says who reaches them.
CMD ["tideserve", "run", "--host", "0.0.0.0", "config/serve.a100.yaml", "--verbose"]

ARG VERSION=0.1.0
ARG REVISION=""
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="tideserve" \
      org.opencontainers.image.description="LLM serving on Ray Serve and vLLM, for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"

# The modules of `python -m benchmarks.gpu_proof`; its packages are in the serving image.
FROM dependencies AS laboratory
WORKDIR /opt/laboratory/lib/python3.11/site-packages
COPY benchmarks benchmarks
COPY loadtests loadtests
COPY replay replay
COPY traces traces
RUN /opt/tideserve/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/laboratory/lib

FROM serving AS proof
COPY --from=laboratory /opt/laboratory /opt/tideserve
CMD ["python", "-m", "benchmarks.gpu_proof", "--stages", "smoke", "--out", "/tmp/proof"]

# The last stage is what is built without --target.
FROM serving
