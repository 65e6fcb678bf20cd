# One image for the API, workers, query workers and Spark: another version is refused at connect.
FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY lock /src/lock
RUN python3 -m venv /opt/kalla \
 && /opt/kalla/bin/python -m pip install --quiet --no-cache-dir --require-hashes -r lock/uv.lock \
 && /opt/kalla/bin/uv pip install --quiet --no-cache --python /opt/kalla/bin/python --require-hashes \
    --build-constraints lock/build.lock -r lock/requirements.lock
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY src /src/src
# Node bundles the libraries of the pages; nothing needs it afterwards.
RUN /opt/kalla/bin/uv pip install --quiet --no-cache --python /opt/kalla/bin/python --require-hashes -r lock/node.lock \
 && /opt/kalla/bin/uv pip install --quiet --no-cache --python /opt/kalla/bin/python --no-deps --no-build-isolation . \
 && /opt/kalla/bin/uv pip uninstall --quiet --python /opt/kalla/bin/python -r lock/node.lock
# What numba would compile at the first match or query, in every container anew.
RUN /opt/kalla/bin/python -m kalla.compiling

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 kalla \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/kalla --create-home --shell /usr/sbin/nologin kalla
COPY --from=build /opt/kalla /opt/kalla
COPY deploy/image/entrypoint /usr/local/bin/entrypoint
ENV PATH=/opt/kalla/bin:/usr/local/bin:/usr/bin:/bin \
    JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64 \
    SPARK_HOME=/opt/kalla/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/kalla/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    KALLA_DATA_DIR=/var/lib/kalla
WORKDIR /var/lib/kalla
USER 10001:10001
# tini passes SIGTERM on, so that a worker drains, and reaps what a killed kernel leaves behind.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/entrypoint"]
CMD ["api"]
