/**
 * One agent session of LiveKit's Node package without a room: its own session, detector, speech and model interfaces, with sound in memory.
 *
 * `node session.mjs ADDRESS` plays a call, sends its spans to ADDRESS by OTLP as the environment says (`OTEL_EXPORTER_OTLP_PROTOCOL`),
 * and prints LiveKit's own figures of each message as JSON. It lies beside the `node_modules` that have `@livekit/agents`.
 */

import { AudioFrame } from '@livekit/rtc-node';
import * as agents from '@livekit/agents';
import { OTLPTraceExporter as JsonExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { OTLPTraceExporter as ProtobufExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { defaultResource, resourceFromAttributes } from '@opentelemetry/resources';
import { BatchSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { NodeTracerProvider } from '@opentelemetry/sdk-trace-node';
import { ReadableStream } from 'node:stream/web';
import { setTimeout as passed } from 'node:timers/promises';
import { z } from 'zod';

const { llm, stt, tts, voice } = agents;
const RATE = 16_000;
const PIECE_MS = 20;
const PIECE = (RATE * PIECE_MS) / 1000;
const LOUD = Int16Array.from({ length: PIECE }, (_, i) => 9_000 * Math.sin(i / 5));
const SILENCE_MS = 200; // after so much silence the detector is sure
const SPOKEN_MS = 400;
const ANSWER_MS = 300;
const LONG_MS = 4_000;
const LONG = 'This is a very long answer about badges, and about all their colours in all the rooms of the whole house.';
const CUT = 4;
const FAILS = 6;
const TURNS = 8;
const STEPS = {
  '2 ': { tool: 'find_badge', args: { color: 'blue' } },
  '3 ': { tool: 'open_drawer', args: {} },
  [`${CUT} `]: { text: LONG },
  [`${FAILS} `]: { error: 'the model is down' },
};

const piece = (data) => new AudioFrame(Int16Array.from(data), RATE, 1, PIECE);

class Detecting extends agents.VADStream {
  constructor(vad) {
    super(vad);
    this.run();
  }

  async run() {
    let [speaking, spoken, quiet, samples] = [false, 0, 0, 0];
    let heard = [];
    for (;;) {
      const { done, value: frame } = await this.inputReader.read();
      if (done) return;
      if (typeof frame === 'symbol') continue;
      samples += frame.samplesPerChannel;
      const isLoud = frame.data.some((each) => each > 1_000);
      if (isLoud) {
        spoken += PIECE_MS;
        quiet = 0;
      } else {
        quiet += PIECE_MS;
      }
      heard.push(frame);
      const kinds = [agents.VADEventType.INFERENCE_DONE];
      if (isLoud && !speaking) {
        speaking = true;
        spoken = PIECE_MS;
        heard = [frame];
        kinds.unshift(agents.VADEventType.START_OF_SPEECH);
      } else if (speaking && quiet >= SILENCE_MS) {
        speaking = false;
        kinds.unshift(agents.VADEventType.END_OF_SPEECH);
      }
      for (const type of kinds) {
        const told = this.sendVADEvent({
          type, samplesIndex: samples, timestamp: Date.now(), speechDuration: spoken, silenceDuration: quiet, frames: [...heard],
          probability: isLoud ? 1 : 0, inferenceDuration: 0, speaking, rawAccumulatedSilence: quiet,
          rawAccumulatedSpeech: isLoud ? spoken : 0,
        });
        if (!told) return;
        if (type === agents.VADEventType.END_OF_SPEECH) {
          spoken = 0;
          heard = [];
        }
      }
    }
  }
}

class Detector extends agents.VAD {
  label = 'detector';

  constructor() {
    super({ updateInterval: PIECE_MS });
  }

  stream() {
    return new Detecting(this);
  }
}

/** Understands question after question. */
class Ear extends stt.STT {
  label = 'ear';
  heard = 0;

  constructor() {
    super({ streaming: false, interimResults: false });
  }

  async _recognize() {
    await passed(50);
    this.heard += 1;
    const said = { language: 'en', text: `Question ${this.heard} .`, startTime: 0, endTime: 0, confidence: 1 };
    return { type: stt.SpeechEventType.FINAL_TRANSCRIPT, alternatives: [said] };
  }

  stream() {
    throw new Error('it hears whole utterances');
  }
}

class Thinking extends llm.LLMStream {
  async run() {
    await passed(100);
    const items = this.chatCtx.items;
    const asked = items.findLastIndex((each) => each.type === 'message' && each.role === 'user');
    const turn = asked < 0 ? 0 : items[asked].textContent.match(/(\d+) \.$/)[1];
    const hasResult = items.slice(asked + 1).some((each) => each.type === 'function_call_output');
    const step = (hasResult ? undefined : STEPS[`${turn} `]) ?? { text: `Answer ${turn}.` };
    if (step.error) throw new agents.APIStatusError({ message: step.error, options: { statusCode: 400, retryable: false } });
    const delta = { role: 'assistant' };
    if (step.tool) {
      delta.toolCalls = [llm.FunctionCall.create({ callId: `call_${step.tool}`, name: step.tool, args: JSON.stringify(step.args) })];
    } else {
      delta.content = step.text;
    }
    this.queue.put({ id: 'c', delta });
    this.queue.put({ id: 'c', usage: { completionTokens: 7, promptTokens: 20, promptCachedTokens: 0, totalTokens: 27 } });
  }
}

/** Answers the last question: with words, a tool with its arguments, or an error. */
class Mind extends llm.LLM {
  label() {
    return 'mind';
  }

  get model() {
    return 'mind-1';
  }

  chat({ chatCtx, toolCtx, connOptions = agents.DEFAULT_API_CONNECT_OPTIONS }) {
    return new Thinking(this, { chatCtx, toolCtx, connOptions });
  }
}

class Speaking extends tts.ChunkedStream {
  label = 'speaking';

  async run() {
    await passed(50);
    const pieces = (this.inputText.length > 60 ? LONG_MS : ANSWER_MS) / PIECE_MS;
    for (let n = 1; n <= pieces; n += 1) {
      this.queue.put({ requestId: 'r', segmentId: 's', frame: piece(LOUD), final: n === pieces });
    }
    this.queue.close();
  }
}

/** Speaks for as long as the script says: a long line is long. */
class Mouth extends tts.TTS {
  label = 'mouth';

  constructor() {
    super(RATE, 1, { streaming: false });
  }

  synthesize(text, connOptions, abortSignal) {
    return new Speaking(text, this, connOptions, abortSignal);
  }

  stream() {
    throw new Error('it speaks whole sentences');
  }
}

/** Sound while somebody speaks, otherwise silence, in real time. */
class Microphone extends voice.AudioInput {
  pieces = 0;
  isOpen = true;

  constructor() {
    super();
    this.multiStream.addInputStream(new ReadableStream({ start: (sink) => void this.run(sink) }));
  }

  async run(sink) {
    for (let due = performance.now(); this.isOpen; ) {
      due += PIECE_MS;
      await passed(Math.max(0, due - performance.now()));
      sink.enqueue(piece(this.pieces > 0 ? LOUD : new Int16Array(PIECE)));
      this.pieces = Math.max(0, this.pieces - 1);
    }
    sink.close();
  }

  async speak(ms) {
    this.pieces = ms / PIECE_MS;
    while (this.pieces > 0) await passed(PIECE_MS);
  }
}

/** Plays in real time, and can be cut off. */
class Loudspeaker extends voice.AudioOutput {
  beganMs = undefined;
  wholeMs = 0;
  timer = undefined;

  async captureFrame(frame) {
    await super.captureFrame(frame);
    if (this.beganMs === undefined) {
      this.beganMs = Date.now();
      this.wholeMs = 0;
      this.onPlaybackStarted(this.beganMs);
    }
    this.wholeMs += (1000 * frame.samplesPerChannel) / frame.sampleRate;
  }

  flush() {
    super.flush();
    if (this.beganMs !== undefined) {
      this.timer = setTimeout(() => this.over(false), Math.max(0, this.beganMs + this.wholeMs - Date.now()));
    }
  }

  clearBuffer() {
    if (this.beganMs !== undefined) this.over(true);
  }

  over(interrupted) {
    clearTimeout(this.timer);
    const playbackPosition = Math.min(this.wholeMs, Date.now() - this.beganMs) / 1000;
    this.beganMs = undefined;
    this.onPlaybackFinished({ playbackPosition, interrupted });
  }
}

async function play() {
  const desk = new voice.Agent({
    instructions: 'You are a desk.',
    tools: {
      find_badge: llm.tool({
        description: 'Finds a badge.',
        parameters: z.object({ color: z.string() }),
        execute: async ({ color }) => {
          await passed(300);
          return `the ${color} badge is B7`;
        },
      }),
      open_drawer: llm.tool({
        description: 'Opens the drawer.',
        parameters: z.object({}),
        execute: async () => {
          throw new Error('the drawer is stuck');
        },
      }),
    },
  });
  const session = new voice.AgentSession({
    vad: new Detector(), stt: new stt.StreamAdapter(new Ear(), new Detector()), llm: new Mind(), tts: new Mouth(),
    aecWarmupDuration: null,
    turnHandling: {
      turnDetection: 'vad', endpointing: { minDelay: 100, maxDelay: 300 }, preemptiveGeneration: { enabled: false },
      interruption: { mode: 'vad', minDuration: 200 },
    },
  });
  const figures = [];
  let answers = 0;
  let errors = 0;
  session.on('agent_state_changed', (event) => {
    answers += event.newState === 'speaking' ? 1 : 0;
  });
  session.on('error', () => {
    errors += 1;
  });
  session.on('conversation_item_added', ({ item }) => {
    if (item.type !== 'message') return;
    figures.push({ role: item.role, text: item.textContent, interrupted: item.interrupted, metrics: item.metrics });
  });
  const [microphone, loudspeaker] = [new Microphone(), new Loudspeaker(RATE)];
  session.input.audio = microphone;
  session.output.audio = loudspeaker;
  await session.start({ agent: desk, record: false });
  await passed(300);
  const until = async (isSo) => {
    for (const begun = Date.now(); !isSo(); ) {
      if (Date.now() - begun > 60_000) throw new Error('what the caller waits for did not come');
      await passed(PIECE_MS);
    }
  };
  for (let turn = 1; turn <= TURNS; turn += 1) {
    const before = answers;
    await microphone.speak(SPOKEN_MS);
    if (turn === FAILS) {
      await passed(1_000); // nobody answers
      continue;
    }
    await until(() => answers > before);
    if (turn === CUT) {
      await passed(800); // the next turn cuts this answer
    } else {
      await until(() => session.agentState === 'listening');
      await passed(250);
    }
  }
  await passed(500);
  await session.close();
  microphone.isOpen = false;
  return { figures, errors };
}

const url = process.argv[2];
const exporter = process.env.OTEL_EXPORTER_OTLP_PROTOCOL === 'http/json' ? new JsonExporter({ url }) : new ProtobufExporter({ url });
const provider = new NodeTracerProvider({
  resource: defaultResource().merge(resourceFromAttributes({ 'service.name': 'livekit-node' })),
  spanProcessors: [new BatchSpanProcessor(exporter)],
});
agents.initializeLogger({ pretty: false, level: process.env.LOG_LEVEL ?? 'silent' });
provider.register();
agents.telemetry.setTracerProvider(provider, { registerSpanProcessor: () => {} });
const told = await play();
await provider.shutdown(); // it sends what is left
console.log(JSON.stringify({ version: agents.version, ...told }));
process.exit(0);
