# Holdfast in a container.
#
#   docker build -t holdfast .
#   docker run --rm -v holdfast-data:/data holdfast keys create
#   docker run --rm -v holdfast-data:/data -e OPENAI_API_KEY -e HOLDFAST_HOST=0.0.0.0 -p 8377:8377 holdfast
#
# The first command makes an API key; with one, any address is served to whoever has it (docs/access.md). Without one
# Holdfast listens on loopback only, and a container's own cannot be reached by --publish: then `--network host` instead of
# the last two options puts the server at http://127.0.0.1:8377 of the host, and no one else's.

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/holdfast
WORKDIR /source
# The lock first: as long as it is unchanged, this layer is.
COPY requirements/base.lock requirements/base.lock
RUN /opt/holdfast/bin/pip install --require-hashes -r requirements/base.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
# The build backend is in the lock, so nothing is fetched here.
RUN /opt/holdfast/bin/pip install --no-deps --no-build-isolation --no-index .

FROM python:3.13-slim
RUN useradd --system --uid 8377 --home-dir /data --shell /usr/sbin/nologin holdfast \
 && install -d -o holdfast -g holdfast /data
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOLDFAST_HOST=127.0.0.1 \
    HOLDFAST_PORT=8377 \
    HOLDFAST_STORE=sqlite:///holdfast.db
USER holdfast
WORKDIR /data
VOLUME /data
EXPOSE 8377
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['HOLDFAST_PORT'] + '/healthz', timeout=2)"]
# Ctrl-C and `docker stop` alike end it cleanly.
STOPSIGNAL SIGINT
ENTRYPOINT ["holdfast"]
CMD ["serve"]
