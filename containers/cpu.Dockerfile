# Katt for CPUs, compiled for the one that builds it: docker build -f containers/cpu.Dockerfile -t katt .
FROM debian:12
COPY . /katt
WORKDIR /katt
RUN scripts/demo
RUN scripts/test
ENV PATH="/katt/build/openmp:$PATH"
CMD ["katt", "info"]
