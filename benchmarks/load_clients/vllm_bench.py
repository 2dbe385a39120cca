"""`vllm bench serve`, whose command does not start from the CPU distribution of vLLM."""

import argparse

if __name__ == "__main__":
    from vllm.benchmarks import serve

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())
