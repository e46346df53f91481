"""Load tests of the server, beside llama.cpp's own: python3 bench/serve --help."""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import time

import contenders
from load import closed_loop, open_loop, quantile, stream, summary

CHAT = '/v1/chat/completions'
# A token of the default vocabulary is a little more than four bytes of English text.
BYTES_PER_TOKEN = 4.2


class Texts:
    """Pieces of a long document that share no beginning."""

    def __init__(self, path):
        with open(path, encoding='utf-8', errors='replace') as f:
            self.text = f.read()
        self.numbers = itertools.count(1)

    def piece(self, tokens):
        n = next(self.numbers)
        length = int(tokens * BYTES_PER_TOKEN)
        # A step that is coprime to the length visits all beginnings.
        at = (n * 7919) % max(1, len(self.text) - length)
        return f'Note {n}. ' + self.text[at : at + length]

    def chats(self, tokens, answer_tokens):
        while True:
            yield chat(self.piece(tokens), answer_tokens)


def chat(text, answer_tokens):
    return {
        'model': 'default',
        'messages': [{'role': 'user', 'content': text}],
        'max_tokens': answer_tokens,
        'temperature': 0,
    }


def say(text):
    print(text, file=sys.stderr, flush=True)


async def throughput(target, texts, clients, prompt, answer, seconds):
    records = await closed_loop(target, CHAT, texts.chats(prompt, answer), clients, seconds)
    # The last answers end after the time is up: count what came by the wall clock.
    begun = min(r.begun for r in records)
    return summary(records, max(r.begun + r.total for r in records) - begun)


async def short_chat(args, texts):
    """Open loop and closed loops of short questions; 50 clients against 10."""
    out = {}
    with contenders.varve(args, 16) as target:
        await throughput(target, texts, 4, 200, 16, 3)
        for clients in (10, 50):
            say(f'short_chat: {clients} clients')
            out[f'clients_{clients}'] = await throughput(
                target, texts, clients, 200, 64, args.seconds
            )
        say('short_chat: open loop')
        records = await open_loop(target, CHAT, texts.chats(200, 32), 4, args.seconds)
        out['open_loop_4_per_s'] = summary(records, args.seconds)
    rate = {n: out[f'clients_{n}']['output_tokens_per_s'] for n in (10, 50)}
    out['throughput_50_over_10'] = rate[50] / rate[10]
    return out


async def clients_2k(args, texts):
    """16 clients with contexts of 2K tokens; both servers in turn, twice."""
    rounds = []
    for _ in range(args.rounds):
        one = {}
        starts = {'varve': contenders.varve, 'llama_cpp': contenders.llama_server}
        for name in starts if args.peer else ['varve']:
            say(f'clients_2k: {name}')
            with starts[name](args, 16) as target:
                await throughput(target, texts, 2, 200, 16, 3)
                one[name] = await throughput(target, texts, 16, 2000, 128, args.seconds)
        rounds.append(one)
    out = {'rounds': rounds}
    if args.peer:
        ratios = [
            r['varve']['output_tokens_per_s'] / r['llama_cpp']['output_tokens_per_s']
            for r in rounds
        ]
        out['throughput_over_llama_cpp'] = quantile(ratios, 0.5)
    return out


async def long_document(args, texts):
    """A document asked twice: the second time to the first token against the first."""
    out = {}
    starts = {'varve': contenders.varve}
    if args.peer:
        starts['llama_cpp'] = lambda a: contenders.llama_server(a, 1, 20000)
    for name, start in starts.items():
        say(f'long_document: {name}')
        with start(args) as target:
            await stream(target, CHAT, chat(texts.piece(200), 8))
            firsts, agains = [], []
            for _ in range(args.rounds):
                document = texts.piece(args.document_tokens)
                for times, question in ((firsts, 'What is this about?'), (agains, 'Who wrote it?')):
                    record = await stream(target, CHAT, chat(f'{document}\n\n{question}', 16))
                    if not record.ok:
                        raise RuntimeError(f'{name}: {record.error or record.status}')
                    times.append(record.ttft)
                say(
                    f'  first {firsts[-1]:.2f} s, again {agains[-1]:.3f} s, '
                    f'cached {record.cached_tokens}'
                )
            out[name] = {
                'prompt_tokens': record.prompt_tokens,
                'first_ttft_ms': 1e3 * quantile(firsts, 0.5),
                'again_ttft_ms': 1e3 * quantile(agains, 0.5),
                'again_over_first': quantile(agains, 0.5) / quantile(firsts, 0.5),
            }
    return out


async def stall(args, texts):
    """Gaps between tokens of running answers while a 16K prompt is read, against without."""
    out = {}
    starts = {'varve': contenders.varve}
    if args.peer:
        starts['llama_cpp'] = lambda a: contenders.llama_server(a, 5, 20000)
    for name, start in starts.items():
        say(f'stall: {name}')
        with start(args) as target:
            streams = [
                asyncio.create_task(stream(target, CHAT, chat(texts.piece(500), 3000)))
                for _ in range(4)
            ]
            await asyncio.sleep(5 + args.seconds / 4)
            begun = time.monotonic()
            prefill = await stream(target, CHAT, chat(texts.piece(args.document_tokens), 4))
            ended = begun + (prefill.ttft or prefill.total)
            for task in streams:
                task.cancel()
            records = await asyncio.gather(*streams)
        out[name] = stall_summary(records, begun, ended, prefill)
    return out


def stall_summary(records, begun, ended, prefill):
    before, during = [], []
    for record in records:
        for at, gap in zip(record.gap_times, record.gaps):
            if begun - 5 < at <= begun:
                before.append(gap)
            elif begun < at <= ended:
                during.append(gap)
    return {
        'prefill_tokens': prefill.prompt_tokens,
        'prefill_s': ended - begun,
        'gap_p99_ms_without': 1e3 * quantile(before, 0.99),
        'gap_p99_ms_during': 1e3 * quantile(during, 0.99),
        'gap_max_ms_during': 1e3 * max(during, default=float('nan')),
        'during_over_without': quantile(during, 0.99) / quantile(before, 0.99),
    }


async def vip_stream(target, texts, clients, seconds):
    vip = target.with_key(contenders.KEYS['vip'])
    return await closed_loop(vip, CHAT, texts.chats(300, 32), clients, seconds)


async def flood(args, texts):
    """Two VIP clients alone, then beside 50 standard ones."""
    with contenders.varve(args, 16) as target:
        await throughput(target, texts, 4, 200, 16, 3)
        say('flood: 2 VIP clients alone')
        alone = await vip_stream(target, texts, 2, args.seconds)
        say('flood: and 50 standard clients')
        standard = asyncio.create_task(
            closed_loop(target, CHAT, texts.chats(600, 64), 50, args.seconds + 4)
        )
        await asyncio.sleep(4)
        flooded = await vip_stream(target, texts, 2, args.seconds)
        others = await standard
    out = {
        'vip_alone': summary(alone, args.seconds),
        'vip_flooded': summary(flooded, args.seconds),
        'standard': summary(others, args.seconds + 4),
    }
    out['vip_ttft_p99_over_alone'] = (
        out['vip_flooded']['ttft_ms']['p99'] / out['vip_alone']['ttft_ms']['p99']
    )
    return out


SCENARIOS = {f.__name__: f for f in (short_chat, clients_2k, long_document, stall, flood)}


def main():
    parser = argparse.ArgumentParser(prog='bench/serve', description=__doc__)
    scenarios = f'of {", ".join(SCENARIOS)}; default all'
    parser.add_argument('scenarios', nargs='*', metavar='SCENARIO', help=scenarios)
    parser.add_argument('--varve', default='build/release/bin/varve', help='the program')
    parser.add_argument(
        '--model', default=os.environ.get('VARVE_MODEL'), help='GGUF file, for both servers'
    )
    parser.add_argument('--document', default=os.environ.get('VARVE_DOCUMENT'), help='a long text')
    parser.add_argument('--peer', default='', help="llama.cpp's llama-server; none: varve alone")
    parser.add_argument('--set', action='append', metavar='TABLE.KEY=VALUE', help='for varve')
    parser.add_argument('--seconds', type=float, default=20, help='of each measurement')
    parser.add_argument('--rounds', type=int, default=2)
    parser.add_argument('--document-tokens', type=int, default=16000)
    parser.add_argument('--log', default='serve-bench.log', help='what the servers say')
    args = parser.parse_args()
    unknown = [s for s in args.scenarios if s not in SCENARIOS]
    if unknown or not args.model or not args.document:
        wanted = 'set VARVE_MODEL and VARVE_DOCUMENT'
        parser.error(f'unknown scenarios {unknown}' if unknown else wanted)
    texts, results = Texts(args.document), {}
    for name in args.scenarios or SCENARIOS:
        results[name] = asyncio.run(SCENARIOS[name](args, texts))
        say(json.dumps({name: results[name]}, indent=1))
    print(json.dumps(results))


if __name__ == '__main__':
    with contextlib.suppress(KeyboardInterrupt):
        main()
