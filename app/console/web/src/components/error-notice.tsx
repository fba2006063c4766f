import { ApiError, UnreachableError } from "../api/error";
import { Notice } from "./notice";
import { Reasons } from "./reasons";

/** Error with its message, its reasons, and the request's id for the operator's logs. */
export function ErrorNotice({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const known = error instanceof ApiError ? error : null;
  return (
    <Notice tone="error" title={titleOf(error)}>
      <p>{error instanceof Error ? error.message : "The page failed."}</p>
      {known !== null && known.reasons.length > 0 && <Reasons reasons={known.reasons} />}
      {known !== null && (
        <p className="quiet">
          {known.code}
          {known.requestId !== null && (
            <>
              {" "}
              · request <code>{known.requestId}</code>
            </>
          )}
          {known.retryAfterS !== null && ` · try again in ${known.retryAfterS} s`}
        </p>
      )}
      {onRetry !== undefined && (
        <p>
          <button type="button" onClick={onRetry}>
            Try again
          </button>
        </p>
      )}
    </Notice>
  );
}

function titleOf(error: unknown): string {
  if (error instanceof UnreachableError) return "No answer";
  if (!(error instanceof ApiError)) return "Something failed";
  if (error.status === 403) return "Not allowed";
  if (error.status === 404) return "Not found";
  if (error.status === 412) return "Changed by another user: load the page again";
  if (error.status === 429) return "Limit reached";
  return error.isTransient ? "Not available now" : "Refused";
}
