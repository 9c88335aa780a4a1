# Katt with its CUDA backend: docker build -f containers/cuda.Dockerfile -t katt-cuda . && docker run --gpus all katt-cuda
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
COPY . /katt
WORKDIR /katt
RUN scripts/build cuda
RUN scripts/test cuda
ENV PATH="/katt/build/cuda:$PATH"
CMD ["katt", "info"]
