// The charts' library, as one file that pages may load.
import "uplot/dist/uPlot.min.css";
export { default } from "uplot";
