// Numbers as people read them.

const whole = new Intl.NumberFormat("en");
const digits = number => new Intl.NumberFormat("en", { maximumFractionDigits: number });

export const count = value => value === null || value === undefined ? "–" : whole.format(Math.round(value));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 && value !== 0 ? digits(1).format(value) : count(value);
}

export const percent = share => share === null || share === undefined ? "–" : `${digits(share < 0.1 ? 1 : 0).format(share * 100)} %`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${digits(1).format(seconds)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
