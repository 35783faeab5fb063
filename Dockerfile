# `ddu serve` on CPUs; docs/docker.md says how to use it.
#   docker build -t ddu .
#   docker run --rm -p 8000:8000 -v "$PWD/runs/mnist:/model:ro" ddu
FROM python:3.11-slim

# Of pyproject.toml: add export for bundles of `ddu export`, vision for networks of timm and torchvision
ARG EXTRAS=serve
# PyTorch without CUDA, a tenth of the size
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /app
COPY pyproject.toml README.md LICENSE requirements.txt ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint requirements.txt ".[$EXTRAS]"
RUN useradd --no-create-home --uid 10001 ddu
USER 10001

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["ddu", "serve"]
CMD ["/model", "--host", "0.0.0.0"]
