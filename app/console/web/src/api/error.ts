import type { components } from "./schema";

export type Reason = components["schemas"]["Reason"];

/** Answer of the server that is no success. The message is for people; programs compare the code. */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly status: number,
    message: string,
    readonly code: string,
    readonly param: string | null,
    readonly reasons: readonly Reason[],
    readonly requestId: string | null,
    readonly retryAfterS: number | null,
  ) {
    super(message);
  }

  /** The session has ended, or its key stopped working. */
  get isSignedOut(): boolean {
    return this.status === 401;
  }

  /** The same request may succeed later: the server starts, drains or is full. */
  get isTransient(): boolean {
    return this.status === 503 || this.status === 502 || this.status === 504;
  }
}

/** No answer arrived: the server is not there, or the connection broke. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";

  constructor() {
    super("The server does not answer. It may be restarting, or the connection is down.");
  }
}

interface Envelope {
  error?: { message?: unknown; code?: unknown; param?: unknown; reasons?: unknown };
}

/** Read the error of an answer. A proxy's page instead of the envelope gets a message with the status. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  return errorFrom(response.status, text, (name) => response.headers.get(name));
}

export function errorFrom(status: number, text: string, header: (name: string) => string | null): ApiError {
  const detail = envelope(text).error ?? {};
  const wait = Number(header("retry-after"));
  return new ApiError(
    status,
    typeof detail.message === "string" ? detail.message : `The server answered with status ${status}.`,
    typeof detail.code === "string" ? detail.code : `status_${status}`,
    typeof detail.param === "string" ? detail.param : null,
    Array.isArray(detail.reasons) ? (detail.reasons as Reason[]) : [],
    header("x-request-id"),
    Number.isFinite(wait) && wait > 0 ? wait : null,
  );
}

function envelope(text: string): Envelope {
  try {
    const body: unknown = JSON.parse(text);
    return typeof body === "object" && body !== null ? body : {};
  } catch {
    return {};
  }
}
