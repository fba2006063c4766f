import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { type Schemas, api, body } from "../../api/client";
import { ActionDialog } from "../../components/action-dialog";
import { Empty } from "../../components/empty";
import { Field } from "../../components/field";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { Table } from "../../components/table";

type Price = Schemas["Price"];

const NEW: Price = { model: "default", prompt: "", cached: "", output: "", batch: "" };

/** Prices of a million tokens. */
export function Prices() {
  const [editing, setEditing] = useState<Price | null>(null);
  const [removing, setRemoving] = useState<Price | null>(null);
  const query = useQuery({ queryKey: ["prices"], queryFn: () => body(api.GET("/admin/prices")) });
  return (
    <Page
      title="Prices"
      scopes={["admin"]}
      actions={
        <button type="button" className="primary" onClick={() => setEditing(NEW)}>
          Set a price…
        </button>
      }
    >
      <Loaded query={query}>
        {({ currency, data }) =>
          data.length === 0 ? (
            <Empty title="No prices" command="tenora prices set default --prompt 0.15 --output 0.60">
              <p>Without a price a request costs nothing. Set the price of default first: it holds for all models.</p>
            </Empty>
          ) : (
            <PriceTable prices={data} currency={currency} onEdit={setEditing} onRemove={setRemoving} />
          )
        }
      </Loaded>
      {editing !== null && <PriceDialog price={editing} onClose={() => setEditing(null)} />}
      {removing !== null && (
        <ActionDialog
          title={`Remove the price of ${removing.model}`}
          submit="Remove the price"
          confirm={removing.model}
          onClose={() => setRemoving(null)}
          action={() => api.DELETE("/admin/prices/{model}", { params: { path: { model: removing.model } } })}
        >
          <p>Requests from then on have the next price: that of the base or of default, else none.</p>
        </ActionDialog>
      )}
    </Page>
  );
}

interface TableProps {
  prices: readonly Price[];
  currency: string;
  onEdit: (price: Price) => void;
  onRemove: (price: Price) => void;
}

function PriceTable({ prices, currency, onEdit, onRemove }: TableProps) {
  return (
    <Table
      caption={`Prices of a million tokens, in ${currency}`}
      showCaption
      rows={prices}
      rowKey={(price) => price.model}
      columns={[
        { head: "Model", cell: (price) => <code>{price.model}</code> },
        { head: "Prompt", numeric: true, cell: (price) => price.prompt },
        { head: "Cached prompt", numeric: true, cell: (price) => price.cached },
        { head: "Output", numeric: true, cell: (price) => price.output },
        { head: "Factor of batches", numeric: true, cell: (price) => price.batch },
        {
          head: "Actions",
          cell: (price) => (
            <div className="row">
              <button
                type="button"
                className="small"
                aria-label={`Change the price of ${price.model}`}
                onClick={() => onEdit(price)}
              >
                Change…
              </button>
              <button
                type="button"
                className="small"
                aria-label={`Remove the price of ${price.model}`}
                onClick={() => onRemove(price)}
              >
                Remove…
              </button>
            </div>
          ),
        },
      ]}
    />
  );
}

function PriceDialog({ price, onClose }: { price: Price; onClose: () => void }) {
  const [model, setModel] = useState(price.model);
  const [prompt, setPrompt] = useState(price.prompt);
  const [cached, setCached] = useState(price.cached);
  const [output, setOutput] = useState(price.output);
  return (
    <ActionDialog
      title="Set a price"
      submit="Set the price"
      disabled={model.trim() === "" || prompt === "" || output === ""}
      onClose={onClose}
      action={() =>
        api.PUT("/admin/prices/{model}", {
          params: { path: { model: model.trim() } },
          body: { prompt, output, cached: cached || null, batch: price.batch || null },
        })
      }
    >
      <Field label="Model" value={model} onValue={setModel} hint="default, base, or tenant/adapter" />
      <div className="fields">
        <Field label="Prompt" inputMode="decimal" value={prompt} onValue={setPrompt} />
        <Field
          label="Cached prompt"
          inputMode="decimal"
          value={cached}
          onValue={setCached}
          hint="Empty: as the prompt"
        />
        <Field label="Output" inputMode="decimal" value={output} onValue={setOutput} />
      </div>
    </ActionDialog>
  );
}
