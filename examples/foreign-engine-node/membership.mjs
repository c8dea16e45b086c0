// This rank's membership: the Register stream, which is its lease, and the load reports.
import { status } from "@grpc/grpc-js";
import { seconds } from "./contract.mjs";

const REDIAL_MS = 1000;
const LOAD_MS = 100; // looked at so often; told when it changed, and once a second when it did not

// Answers of the head that asking again would only repeat.
const FINAL = ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "ALREADY_EXISTS", "OUT_OF_RANGE", "PERMISSION_DENIED",
  "UNAUTHENTICATED", "ABORTED"].map((name) => status[name]); // prettier-ignore

export class Membership {
  #call; // undefined while there is no lease
  #beat;
  #drainTimer;
  #acceptedBy = "0";
  #headIncarnation = "0";

  // `welcomed(rank)` is called before Ready is sent, `ended(exitCode, why)` when there is no way on.
  constructor({ rendezvous, hello, ready, engine, welcomed, ended }) {
    Object.assign(this, { rendezvous, hello, ready, engine, welcomed, ended });
  }

  // Registers, and again after every break: a head that is away does not keep this engine from serving.
  join() {
    const call = (this.#call = this.rendezvous.Register());
    call.on("data", (response) => this.#obey(response));
    call.on("error", () => {}); // the status says it all
    call.on("status", ({ code, details }) => {
      this.#call = undefined;
      clearInterval(this.#beat);
      if (this.leaving) return this.ended(...this.leaving);
      if (FINAL.includes(code)) return this.ended(1, `the head refuses this engine: ${details}`);
      console.log(`no lease from the head (${details || status[code]}); trying again`);
      setTimeout(() => this.join(), REDIAL_MS);
    });
    call.write({ hello: { ...this.hello, acceptedBy: this.#acceptedBy } });
  }

  #obey({ welcome, accepted, drain, undrain, stop }) {
    if (welcome) {
      this.hello.rank = welcome.rank; // a restarted head must give the same place back
      this.#headIncarnation = welcome.headIncarnation;
      this.welcomed(welcome.rank);
      this.#call.write({ ready: this.ready() });
      this.#beat = setInterval(() => this.#heartbeat(), 1000 * seconds(welcome.heartbeatInterval));
    } else if (accepted) {
      this.#acceptedBy = this.#headIncarnation;
      console.log(`serving as rank ${this.hello.rank}`);
    } else if (drain) this.#drain(drain.timeout);
    else if (undrain) this.#undrain();
    else if (stop) this.stop(stop.reason, stop.timeout, stop.restart ? 75 : 0);
    this.#heartbeat();
  }

  #heartbeat() {
    const { draining, load, turnedAt } = this.engine;
    const drained = draining && load.running + load.waiting === 0;
    this.#call?.write({ heartbeat: { loopIdleMs: Date.now() - turnedAt, draining, drained } });
  }

  // Takes no more requests; what still runs after the timeout is aborted.
  #drain(timeout) {
    this.#undrain(true);
    if (timeout) this.#drainTimer = setTimeout(() => this.engine.abortAll(), 1000 * seconds(timeout));
  }

  #undrain(draining = false) {
    clearTimeout(this.#drainTimer);
    this.engine.drain(draining);
  }

  // Finishes what runs, says goodbye and ends the process.
  stop(reason, timeout, exitCode = 0) {
    this.#drain(timeout);
    const leave = setInterval(() => {
      if (this.engine.load.running + this.engine.load.waiting) return;
      clearInterval(leave);
      this.leaving = [exitCode, reason];
      if (!this.#call) return this.ended(exitCode, reason);
      this.#call.write({ goodbye: { reason } });
      this.#call.end();
    }, 50);
  }
}

// Pushes this rank's numbers to the coordinator for as long as the process lives.
export function reportLoad(coordinator, { rank, incarnation }, engine) {
  let told = "";
  let toldAt = 0;
  let sequence = 0;
  const timer = setInterval(() => {
    const stats = engine.load;
    const now = JSON.stringify(stats);
    if (now === told && Date.now() - toldAt < 1000) return;
    call.write({ rank, incarnation, sequence: ++sequence, stats });
    [told, toldAt] = [now, Date.now()];
  }, LOAD_MS);
  const call = coordinator.ReportLoad(() => {
    clearInterval(timer); // losing reports never disturbs serving
    setTimeout(() => reportLoad(coordinator, { rank, incarnation }, engine), REDIAL_MS);
  });
}
